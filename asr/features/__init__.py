"""The front end of training and inference: log-mel and MFCC features of padded batches."""
