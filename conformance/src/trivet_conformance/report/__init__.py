"""What a run leaves behind: lines, summary and views of them."""
