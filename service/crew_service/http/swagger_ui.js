// Send requests to this page's own base URL: a proxy may serve it below a prefix that is not in the document.
const start = async () => {
  const answer = await fetch("openapi.json");
  const spec = await answer.json();
  spec.servers = [{ url: new URL(".", location.href).href.replace(/\/$/, "") }];
  SwaggerUIBundle({
    spec,
    dom_id: "#swagger-ui",
    deepLinking: true,
    displayRequestDuration: true,
    tryItOutEnabled: true,
    validatorUrl: null, // by default, the document is sent to a validator on the internet
  });
};
start();
