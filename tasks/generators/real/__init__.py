"""Real data: text and images."""
