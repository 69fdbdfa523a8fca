"""Error rates: alignment, intervals, significance, reports."""
