"""Settings: the model, its flags and tables, and the options of each process."""
