"""Experimental models with their search and scoring; the folder can be deleted."""
