"""Models as ONNX graphs, which other runtimes read: sherpa-onnx, ONNX Runtime, phones, browsers."""
