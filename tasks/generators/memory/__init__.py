"""Memory: store numbers or tokens over a fixed or marked distance, or facts in the parameters."""
