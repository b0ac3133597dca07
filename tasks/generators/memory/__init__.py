"""Keep numbers or tokens over a known or marked distance, or a map in the parameters."""
