"""How a module is called whole and continued chunk by chunk: one adapter for each protocol."""
