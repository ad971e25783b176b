/** Whether a key is an input method's. Safari ends the composition before the keydown that ended it, whose code is 229. */
export const isComposing = (event: KeyboardEvent): boolean => event.isComposing || event.keyCode === 229;
