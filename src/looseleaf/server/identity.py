"""Who sends a request: API keys, the tenants that they belong to, and what a tenant may use."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from looseleaf.errors import ConfigurationError

logger = logging.getLogger("looseleaf.server")

DEFAULT_TENANT = "default"
"""Whose keys those of `--api-key` are."""
_SALT_BYTES = 16


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and weight of one tenant. None: no limit."""

    name: str
    weight: float = 1.0
    """Share of the service where tenants compete: twice the weight, twice the tokens."""
    max_concurrent_requests: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output together."""
    lowest_priority_value: int | None = None
    """Requests may ask for no smaller `priority` (smaller values are served first)."""


NOBODY = Tenant(name="")
"""Everyone, where no keys are needed."""


class _TenantEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    keys: list[str]
    weight: float = 1.0
    max_concurrent_requests: int | None = None
    tokens_per_minute: int | None = None
    lowest_priority_value: int | None = None


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: dict[str, _TenantEntry]


class KeyRing:
    """The keys in force. They are held as keyed digests, and compared in a time that tells nothing of them.

    >>> ring = KeyRing(keys=["secret"])
    >>> ring.tenant_of("secret").name
    'default'
    """

    def __init__(self, keys: Sequence[str] = (), file: Path | None = None) -> None:
        """`keys`: of the tenant "default", without limits. Raises `ConfigurationError`."""
        self._secret = secrets.token_bytes(32)
        self._own = {key: Tenant(name=DEFAULT_TENANT) for key in keys}
        self._file = file
        self._entries = self._read()
        self._tenants = {tenant.name: tenant for _, tenant in self._entries}

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._entries)

    @property
    def num_tenants(self) -> int:
        """Who have keys."""
        return len(self._tenants)

    def tenant_of(self, key: str) -> Tenant | None:
        """None for a key that is not known. Each of the known ones is compared, whichever it is."""
        digest, found = self._digest(key), None
        for known, tenant in self._entries:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found

    def tenant_named(self, name: str) -> Tenant:
        """Its limits as they are now; none for a tenant that has lost its keys while it was served."""
        return self._tenants.get(name) or Tenant(name=name)

    def reload(self) -> bool:
        """Read the file again. If that fails the log says why, and the keys stay as they were."""
        if self._file is None:
            return False
        try:
            entries = self._read()
        except ConfigurationError as error:
            logger.error("The API keys stay as they are. %s", error)
            return False
        self._entries = entries
        self._tenants = {tenant.name: tenant for _, tenant in entries}
        logger.info("Read %d API keys from %s.", len(self._entries), self._file)
        return True

    def salt_of(self, tenant: Tenant) -> str:
        """What keeps the tenants' cached prefixes apart. Nobody outside of this process can know it."""
        name = tenant.name.encode()
        return hashlib.blake2b(name, digest_size=_SALT_BYTES, key=self._secret, person=b"cache salt").hexdigest()

    def _digest(self, key: str) -> bytes:
        return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), key=self._secret, person=b"api key").digest()

    def _read(self) -> list[tuple[bytes, Tenant]]:
        keys = dict(self._own)
        for name, entry in (_read_file(self._file) if self._file is not None else {}).items():
            settings = {field: getattr(entry, field) for field in entry.__struct_fields__ if field != "keys"}
            tenant = Tenant(name=name, **settings)
            for key in entry.keys:
                if key in keys:
                    raise ConfigurationError(
                        f"An API key of tenant {name!r} is also one of {keys[key].name!r}.",
                        hint="A key belongs to one tenant; give each keys of its own.",
                    )
                keys[key] = tenant
        if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in keys):
            raise ConfigurationError("An API key is empty, or has characters that a header cannot carry.")
        if self._file is not None and not keys:
            raise ConfigurationError(f"There is no API key in {self._file}.", hint="Without a key nobody is let in.")
        return [(self._digest(key), tenant) for key, tenant in keys.items()]


def _read_file(path: Path) -> Mapping[str, _TenantEntry]:
    """TOML, or JSON of the same form: `{"tenants": {"NAME": {"keys": […], …}}}`. Messages never show a key."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
        found: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        tenants = msgspec.convert(found, _KeyFile).tenants
    except OSError as error:
        raise ConfigurationError(f"The API key file cannot be read: {error.strerror or error}: {path}.") from error
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path} is no valid JSON: {error.msg}, line {error.lineno}.") from error
    except (tomllib.TOMLDecodeError, RecursionError, UnicodeDecodeError):
        # What the parser quotes may be a key.
        raise ConfigurationError(
            f"{path} is no valid TOML.", hint='Write [tenants.NAME], and below it keys = ["…"].'
        ) from None
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {error}.") from error
    for name, entry in tenants.items():
        _check(name, entry)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        logger.warning("Other users of this machine can read the API keys in %s.", path)
    return tenants


def _check(name: str, entry: _TenantEntry) -> None:
    if not name or len(name) > 128 or not name.isprintable():
        raise ConfigurationError(f"{name!r:.80} is no name for a tenant.")
    if not 0.001 <= entry.weight <= 1000:
        raise ConfigurationError(f"Tenant {name!r} has weight {entry.weight} but it must be between 0.001 and 1000.")
    for limit in ("max_concurrent_requests", "tokens_per_minute"):
        value = getattr(entry, limit)
        if value is not None and value < 1:
            raise ConfigurationError(f"Tenant {name!r} has {limit} {value} but it must be at least 1.")
