"""What a machine is made of and what runs on it, asked for in one round trip and read from whatever it can tell."""
