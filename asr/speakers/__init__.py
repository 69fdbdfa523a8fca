"""Who speaks when: models, clustering, words to speakers, and error rates of meetings."""
