"""Long jobs in units: planned once, done by many workers, resumed by what is there"""
