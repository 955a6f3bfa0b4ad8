"""The small operating system inside the simulated guests: files, users, processes, services, a shell and its tools."""
