"""Models of studies, and what searches and scores them; the folder can be deleted."""
