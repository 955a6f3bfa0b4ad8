"""What can be done: one module for each noun. A new tool is one function here and one test."""
