"""Compare the zoo's mixers with their authors' code: recorded outputs, gradients and states, and initial laws."""
