"""The mixers, one final class per file; `zoo.registry` lists them."""
