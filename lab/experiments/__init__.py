"""The experiments of configs/experiment/: what each predicts, and the verdict that its runs give."""
