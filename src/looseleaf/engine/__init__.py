"""The loop that turns requests into tokens: schedule, build the batch, run, sample, commit."""
