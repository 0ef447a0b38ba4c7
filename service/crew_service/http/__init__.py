"""The crew service as HTTP: endpoints, authentication, bodies, the review page and the documentation."""
