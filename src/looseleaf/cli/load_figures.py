"""How the figures of a load test are shown, and whether they can be believed."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from looseleaf.cli.consoles import counted, stdout, warn

_LATE_MS = 10.0
"""From which on the client's own lateness is worth a warning."""
_BUSY = 0.8


def print_figures(figures: dict[str, Any], how: str) -> None:
    from looseleaf.load.figures import LATENCIES

    console = stdout()
    console.print(
        f"{figures['model_id']} at {figures['base_url']}: {counted(figures['num_prompts'], 'request')}, {how}, in "
        f"{figures['duration']:.1f} s; at most {figures['max_concurrent_requests']} in progress.",
        soft_wrap=True,
        markup=False,
    )
    columns = ("mean", "median", "p90", "p99", "max")
    table = Table("latency, ms", *columns, box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, label in {**LATENCIES, "lateness": "sent after it was due"}.items():
        if f"mean_{name}_ms" in figures:
            short = f" ({name.upper()})" if name in LATENCIES else ""
            table.add_row(label + short, *(f"{figures[f'{each}_{name}_ms']:,.1f}" for each in columns))
    console.print(table)
    console.print(
        f"{figures['request_throughput']:.2f} requests/s, {figures['output_throughput']:,.1f} output tokens/s, "
        f"{figures['total_token_throughput']:,.1f} tokens/s with prompts; "
        f"{figures['total_input_tokens']:,} prompt tokens ({figures['total_cached_input_tokens']:,} cached), "
        f"{figures['total_output_tokens']:,} output tokens.",
        soft_wrap=True,
    )
    if figures["slo"] is not None:
        console.print(
            f"Goodput ({figures['slo']}): {figures['request_goodput']:.2f} requests/s; {figures['good_share']:.1%} of "
            "all requests were good.",
            soft_wrap=True,
            markup=False,
        )
    failed = ", ".join(f"{count} × {kind}" for kind, count in figures["failures"].items())
    console.print(f"Failed: {failed or 'none'}.", style="red" if failed else None, soft_wrap=True, markup=False)
    console.print(f"The client took {figures['client_cpu_share']:.1%} of one core.")


def judge(figures: dict[str, Any]) -> None:
    """Whether the client itself may be what was measured."""
    if figures["max_concurrency"] is None and figures.get("p99_lateness_ms", 0.0) > _LATE_MS:
        warn(
            f"The client was late: one request in a hundred was sent {figures['p99_lateness_ms']:.0f} ms or more after "
            "it was due. Latencies include that."
        )
    if figures["client_cpu_share"] > _BUSY:
        warn("The client was busy nearly all the time: it may be what limited the throughput.")
