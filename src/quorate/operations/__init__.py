"""Operations: one module or package per toolset. A new tool is one function here and one test."""
