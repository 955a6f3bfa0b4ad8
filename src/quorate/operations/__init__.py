"""What can be done: one module per toolset. A new tool is one function here and one test."""
