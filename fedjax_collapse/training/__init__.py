"""What one client does in a round, and what the server makes of it."""
