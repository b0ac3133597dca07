"""The application: configuration files, run folders and their metrics, and sweeps. The library is `zoo`."""
