"""In-memory Kubernetes, brokers and Spark operator."""
