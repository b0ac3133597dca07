"""Data that is not drawn but read: text and images."""
