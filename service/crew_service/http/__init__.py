"""The crew service's HTTP side: endpoints, authentication, bodies, the review page and the documentation."""
