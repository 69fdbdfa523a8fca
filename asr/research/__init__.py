"""Experimental models with their search and scoring. Nothing else depends on this folder."""
