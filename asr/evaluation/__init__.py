"""A split decoded and scored; plots of what a model looks at."""
