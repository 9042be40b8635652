"""What tests of the chart share."""
