"""What one client does in a round, and how the server uses the result."""
