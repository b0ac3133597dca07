"""Our generators against those of the projects that published the tasks: recorded statistics."""
