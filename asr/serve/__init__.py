"""The server: OpenAI's audio API over HTTP, live transcription over WebSocket, and a web page"""
