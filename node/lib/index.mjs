import foredraft from './index.cjs';

export const { download, Engine, ForedraftError, Stream, devices, version } = foredraft;
export default foredraft;
