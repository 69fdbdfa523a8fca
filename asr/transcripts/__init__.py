"""Read and write transcripts with times: trn, stm, ctm, JSON, srt, vtt and others."""
