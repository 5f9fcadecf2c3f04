"""Studies of rank and accuracy: what raises them, and when decorrelation kills features instead."""
