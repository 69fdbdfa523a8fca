"""Any audio file to float32 samples and back, in blocks or whole; speech detection and segmentation."""
