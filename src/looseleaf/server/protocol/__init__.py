"""The OpenAI wire format: what bodies may hold, endpoint by endpoint."""
