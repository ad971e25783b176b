/** Of the service that this page was built with, as pyproject.toml says. */
declare const VERSION: string;
declare module "*.css" {
  const text: string;
  export default text;
}
declare module "swagger-ui-dist/swagger-ui-es-bundle.js" {
  export default function SwaggerUI(options: Record<string, unknown>): void;
}
