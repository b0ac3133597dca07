"""The zoo against the code of those who published each mixer."""
