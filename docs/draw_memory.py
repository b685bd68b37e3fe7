"""Remake `memory.svg`, the picture of the README: what `looseleaf show-memory` draws in a terminal.

python docs/draw_memory.py
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
# Rich's own template loads its font from the network; a picture should not.
TEMPLATE = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def main() -> None:
    command = [str(Path(sys.executable).with_name("looseleaf")), "show-memory", "--steps", "1,2", "--quiet"]
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm-256color"}
    drawn = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(Text.from_ansi(drawn.rstrip()))
    svg = console.export_svg(title="looseleaf show-memory", code_format=TEMPLATE, unique_id="memory")
    (HERE / "memory.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


if __name__ == "__main__":
    main()
