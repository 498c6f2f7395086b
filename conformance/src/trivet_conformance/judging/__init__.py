"""What is right: oracle, reference and error budget; and the judgement of results."""
