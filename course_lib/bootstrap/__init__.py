"""Sets the course up and starts it. Standard library only: it runs before anything is installed."""
