"""What each endpoint does."""
