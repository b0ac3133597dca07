"""The application: what knows a configuration file, a run folder and its metrics, a sweep. The library is `zoo`."""
