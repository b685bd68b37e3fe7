"""The lab: real or made-up traffic, replayed through the allocator and the scheduler that serve. No tensors."""
