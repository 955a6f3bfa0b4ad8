"""What `quorate doctor` looks at: whether everything between a caller and a cluster is as it has to be."""
