"""The operating system inside simulated guests: files, users, processes, services and a small shell."""
