/** The page at /docs: Swagger UI over the service's own description, from the service itself. */
import SwaggerUI from "swagger-ui-dist/swagger-ui-es-bundle.js";
import "swagger-ui-dist/swagger-ui.css";

SwaggerUI({ url: "openapi.json", domNode: document.getElementById("root"), deepLinking: true, validatorUrl: null });
