import foredraft from './index.cjs';

export const { Engine, ForedraftError, Stream, version } = foredraft;
export default foredraft;
