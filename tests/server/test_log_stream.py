"""Whoever logs never waits for whoever reads, and what is lost is counted."""

from __future__ import annotations

import io
import os
import time

import pytest

from looseleaf.server.log_stream import BackgroundStream, LostRecords


def test_lines_arrive_whole_and_in_order() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader, os.fdopen(writing, "w") as writer:
        stream = BackgroundStream(writer, pytest.fail)
        for number in range(100):
            stream.write(f"{number} ä\n")
        stream.close()
        writer.close()
        assert reader.read() == "".join(f"{number} ä\n" for number in range(100))


def test_a_reader_that_never_reads_holds_nobody_up() -> None:
    lost = LostRecords()
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as writer:
        stream = BackgroundStream(writer, lost.note, capacity=10)
        began = time.perf_counter()
        for _ in range(2000):
            stream.write("x" * 100 + "\n")
        stream.close()
        assert time.perf_counter() - began < 60  # at all, that is
        # A pipe holds 64 KiB; ten lines wait, and one is being written.
        assert 2000 - 65536 // 101 - 12 <= lost.count < 2000


def test_a_full_disk_is_counted() -> None:
    lost = LostRecords()
    with open("/dev/full", "w") as full:
        stream = BackgroundStream(full, lost.note)
        for _ in range(3):
            stream.write("x\n")
        stream.close()
    assert lost.count == 3


def test_a_stream_without_a_file() -> None:
    text = io.StringIO()
    stream = BackgroundStream(text, pytest.fail)
    stream.write("a\n")
    stream.close()
    assert text.getvalue() == "a\n"
